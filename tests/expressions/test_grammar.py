"""The grammar of expressions: one parser, whose trees are never too deep to be followed."""

from __future__ import annotations

import pytest

from poolish.errors import ConfigError, LimitExceeded
from poolish.expressions.grammar import parse_node
from poolish.expressions.nodes import FLIPPED, MAX_CHARACTERS, MAX_DEPTH, MAX_NESTING, Node, walk

A, B, C = (Node("column", value=name) for name in "abc")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("a + b + c", Node("+", (Node("+", (A, B)), C))),
        ("a + b * c", Node("+", (A, Node("*", (B, C))))),
        ("a or b and c", Node("or", (A, Node("and", (B, C))))),
        ("not a == b", Node("not", (Node("==", (A, B)),))),
        ("a < b <= c", Node("and", (Node("<", (A, B)), Node("<=", (B, C))))),
        ("a not in [1, 'x']", Node("not", (Node("in", (A,), (1, "x")),))),
        ("-1", Node("constant", value=-1)),
        ("--a", A),
        ("-a", Node("negative", (A,))),
        ("lower(a)", Node("lower", (A,))),
        ("contains(a, 'b')", Node("contains", (A,), "b")),
        ("`b`", B),
    ],
)
def test_text_becomes_a_tree(text, tree):
    """Grouped as in Python."""
    assert parse_node(text) == tree


def test_unknown_function_is_refused_with_those_that_exist():
    """A name that cannot be evaluated is refused with those that can."""
    with pytest.raises(ConfigError, match=r"at character 1: 'half' is no function here, there are abs, length, .*cast"):
        parse_node("half(a)")


def test_length_of_the_text_is_limited():
    """Before anything is parsed."""
    with pytest.raises(LimitExceeded, match=f"the limit is {MAX_CHARACTERS:,}"):
        parse_node("a" * (MAX_CHARACTERS + 1))


CHAINS = {
    "sum": ("a", " + a", 1),
    "difference": ("a", " - a", 1),
    "product": ("a", " * a", 1),
    "and": ("a", " and a", 1),
    "or": ("a", " or a", 1),
    "comparisons": ("a", " < a", 1),
    "and of comparisons": ("a < a", " and a < a", 2),
    "or of nots": ("not a", " or not a", 2),
}


@pytest.mark.parametrize(("first", "link", "n_levels"), CHAINS.values(), ids=CHAINS)
def test_chain_is_as_deep_as_it_is_long(first, link, n_levels):
    """The longest chain that is allowed has the greatest depth; each one more is refused, however long."""
    n_links = MAX_DEPTH - n_levels

    longest = parse_node(first + link * n_links)

    assert longest.depth == MAX_DEPTH
    for n_more in (1, 2, 2_000):
        with pytest.raises(LimitExceeded, match=f"more than {MAX_DEPTH} operations in a chain"):
            parse_node(first + link * (n_links + n_more))


@pytest.mark.parametrize("repeated", ["not ", "-"])
def test_repeated_signs_have_no_depth(repeated):
    """Two of them undo each other, so any number is as deep as one or two."""
    assert parse_node(repeated * 1_001 + "a").depth <= 3


def test_parentheses_are_limited_before_the_stack_is():
    """Also where each is a function's."""
    for opening in ("(", "lower("):
        deepest = opening * (MAX_NESTING - 1) + "a" + ")" * (MAX_NESTING - 1)
        assert parse_node(deepest).depth <= MAX_NESTING
        with pytest.raises(LimitExceeded, match=f"nested more than {MAX_NESTING} deep"):
            parse_node(f"{opening}{deepest})")


def test_node_that_would_be_too_deep_cannot_be_made():
    """By the parser or by operators: neither needs a rule of its own."""
    node = A
    for _ in range(MAX_DEPTH - 1):
        node = Node("not", (node,))

    with pytest.raises(LimitExceeded, match=f"more than {MAX_DEPTH} operations in a chain"):
        Node("not", (node,))


def test_depth_is_no_part_of_what_a_node_says():
    """Two nodes are equal if what they say is."""
    assert Node("+", (A, B)) == Node("+", (A, B))
    assert repr(A) == "Node(op='column', args=(), value='a')"


def test_walk_meets_every_node_in_the_order_of_the_text():
    """A whole before its parts, so columns come as they are read."""
    root = parse_node("a + b > c or b")

    assert [node.op for node in walk(root)] == ["or", ">", "+", "column", "column", "column", "column"]
    assert [node.value for node in walk(root) if node.op == "column"] == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("a = 1", "write '=='"),
        ("a && b", "write 'and'"),
        ("a || b", "write 'or'"),
        ("!a", "write 'not'"),
        ("a > 1 Or b", "write 'or' for 'Or'"),
        ("NOT a", "write 'not' for 'NOT'"),
        ("a IN [1]", "write 'in' for 'IN'"),
    ],
)
def test_signs_and_words_of_other_languages_are_told(text, instead):
    """The error says what stands for them here."""
    with pytest.raises(ConfigError, match=f"{instead}$"):
        parse_node(text)


def test_what_is_no_word_gets_no_advice():
    """Nothing is said of a word that was not written, or that is a column in backquotes."""
    for text in ("a b", "`AND` b", "a and b c"):
        with pytest.raises(ConfigError, match=r"the end was expected here$"):
            parse_node(text)


def test_flipped_twice_is_the_same():
    """Sides may be exchanged, and exchanged back."""
    assert {sign: FLIPPED[FLIPPED[sign]] for sign in FLIPPED} == {sign: sign for sign in FLIPPED}
