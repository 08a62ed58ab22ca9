"""The provider's side: `python prepare.py config/train_char_diffusion.py` keeps the queue filled until Ctrl-C."""

from poolish.cli import prepare_main

if __name__ == "__main__":
    prepare_main()
