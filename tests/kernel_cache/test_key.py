import pytest

from dlcb.kernel_cache import Key, explain
from dlcb.kernel_cache.key import checked, is_digest

INGREDIENTS = {
    "graph": "6a1f",
    "rank": "4",
    "dtype": "float32",
    "device": "NVIDIA H200",
    "target": "sm_90",
    "thread count": "8",
    "options": "fast_math=0",
    "compiler version": "nvrtc 13.0.48",
    "generator version": "77ab",
}
CHANGES = {
    "graph": "6a2f",
    "rank": "3",
    "dtype": "bfloat16",
    "device": "NVIDIA H100",
    "target": "sm_90a",
    "thread count": "16",
    "options": "fast_math=1",
    "compiler version": "nvrtc 13.0.88",
    "generator version": "77ac",
}


@pytest.mark.parametrize("name", INGREDIENTS)
def test_each_ingredient_changed_gives_another_key_and_is_named(name: str) -> None:
    before, after = Key(INGREDIENTS), Key({**INGREDIENTS, name: CHANGES[name]})
    assert before.digest != after.digest
    assert before != after
    assert explain(before, after) == [f"{name}: {INGREDIENTS[name]!r} became {CHANGES[name]!r}"]


@pytest.mark.parametrize("name", INGREDIENTS)
def test_each_ingredient_left_out_gives_another_key_and_is_named(name: str) -> None:
    whole = Key(INGREDIENTS)
    less = Key({other: value for other, value in INGREDIENTS.items() if other != name})
    assert whole.digest != less.digest
    assert explain(whole, less) == [f"{name}: only the first has it, {INGREDIENTS[name]!r}"]
    assert explain(less, whole) == [f"{name}: only the second has it, {INGREDIENTS[name]!r}"]


def test_order_and_repetition_do_not_matter() -> None:
    once, again = Key(INGREDIENTS), Key(dict(reversed(INGREDIENTS.items())))
    assert once == again
    assert once.digest == again.digest
    assert hash(once) == hash(again)
    assert explain(once, again) == []


def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    # printf '{"a": "1", "b": "2"}' | sha256sum. A change here would empty every cache in the field.
    expected = "0e09eeab5bdeab40e2af08a4432d53de29fc2ba94dfa38fae0871d749681cf68"
    assert Key({"b": "2", "a": "1"}).digest == expected
    assert is_digest(expected)


def test_ingredients_do_not_run_into_each_other() -> None:
    keys = [
        Key({"a": "1", "b": "2"}),
        Key({"a": '1", "b": "2'}),
        Key({"a": "12"}),
        Key({"a1": "2"}),
        Key({"1": "a"}),
    ]
    assert len({key.digest for key in keys}) == len(keys)


def test_an_empty_ingredient_differs_from_none() -> None:
    assert explain(Key({"a": "1", "b": ""}), Key({"a": "1"})) == ["b: only the first has it, ''"]
    assert explain(Key({"a": "1"}), Key({"a": "1", "b": ""})) == ["b: only the second has it, ''"]


def test_a_long_value_is_cut_around_the_first_difference() -> None:
    before, after = "x" * 500 + "old" + "y" * 500, "x" * 500 + "new" + "y" * 500
    (line,) = explain(Key({"source": before}), Key({"source": after}))
    assert len(line) < 150
    assert "old" in line
    assert "new" in line


def test_a_value_that_only_grew_is_shown_where_it_grew() -> None:
    (line,) = explain(Key({"source": "x" * 500}), Key({"source": "x" * 500 + "tail"}))
    assert "tail" in line


def test_a_key_is_a_mapping_that_keeps_the_order_given() -> None:
    key = Key(INGREDIENTS)
    assert list(key) == list(INGREDIENTS)
    assert dict(key) == INGREDIENTS
    assert len(key) == len(INGREDIENTS)
    assert repr(Key({"a": "1"})) == "Key({'a': '1'})"


def test_a_key_does_not_change_with_the_mapping_it_was_made_from() -> None:
    ingredients = {"a": "1"}
    key = Key(ingredients)
    ingredients["a"] = "2"
    assert key["a"] == "1"


@pytest.mark.parametrize("value", [4, None, b"4", 1.5, ("4",)])
def test_an_ingredient_that_is_not_text_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="'rank' must be text"):
        Key({"rank": value})  # type: ignore[dict-item]


def test_a_key_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Key({})


@pytest.mark.parametrize("text", ["", "ab", "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n", "a" * 65])
def test_what_is_no_digest_is_no_key_of_a_store(text: str) -> None:
    assert not is_digest(text)
    with pytest.raises(ValueError, match="64 characters"):
        checked(text)
