"""One config for both sides: the provider masks by it, the trainer trains by it, and config/validator.py checks it."""

dataset = "char_diffusion"
batch_size = 32
block_size = 64
seed = 1

# Masking. Easy batches first: until that many train batches were made, fewer characters are masked.
# `val` is always masked with `mask_probability`, so that its losses can be compared from beginning to end.
mask_probability = 0.3
stages = [
    {"until": 100, "mask_probability": 0.15},
    {"until": 300, "mask_probability": 0.2},
]
ignore_index = -100  # the target where nothing was masked: cross_entropy leaves it out

# The model: 2 layers of 64 are 110,000 parameters, which one core trains visibly within a minute.
n_layer = 2
n_head = 4
n_embd = 64
dropout = 0.0

# Training
learning_rate = 4e-3
warmup_steps = 50
max_steps = 1200
evaluate_every = 200
evaluate_batches = 4
checkpoint_every = 200
out_dir = "runs/char_diffusion"

# What the trained model fills in at the end: each underscore is one masked character.
fill_in = [
    "The k_ng h_th sent fo_ his daugh__r, my l_rd.",
    "To be, or n_t to b_: th_t is th_ q_estion",
    "O Romeo, R_m_o! Wh_refore art th_u Rom_o?",
]
