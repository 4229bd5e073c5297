"""Named ingredients in, a content key out. Two keys with the same ingredients have the same digest, in
whatever order they were named, and `explain` says which ingredient sets two keys apart.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 48  # characters of a value in an explanation


class Key(Mapping[str, str]):
    """An immutable mapping from an ingredient's name to its text, such as `{"target": "sm_90", "generator":
    "3f…"}`.

    Raises TypeError for an ingredient that is not text (a number has many spellings; the caller chooses
    one) and ValueError for no ingredients at all.
    """

    def __init__(self, ingredients: Mapping[str, str]) -> None:
        for name, value in ingredients.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"key ingredient {name!r} must be text, got {type(value).__name__} {value!r}")
        if not ingredients:
            raise ValueError("a key needs at least one ingredient")
        self._ingredients = dict(ingredients)

    def __getitem__(self, name: str) -> str:
        return self._ingredients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ingredients)

    def __len__(self) -> int:
        return len(self._ingredients)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Key({self._ingredients!r})"

    @cached_property
    def digest(self) -> str:
        """Lower-case hex sha256 of the ingredients, sorted by name and quoted so that none run together."""
        return hashlib.sha256(json.dumps(self._ingredients, sort_keys=True).encode()).hexdigest()


def explain(a: Key, b: Key) -> list[str]:
    """One line for each ingredient that differs, in the order the keys name them; empty for equal keys."""
    return [_difference(name, a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)]


def is_digest(text: str) -> bool:
    """Whether the text is a lower-case hex sha256, the only form of key a store takes."""
    return _DIGEST.fullmatch(text) is not None


def checked(digest: str) -> str:
    """The digest itself; ValueError for anything else, so that no key can name a path outside the store."""
    if not is_digest(digest):
        raise ValueError(f"a store's key is a lower-case hex sha256 of 64 characters, got {digest!r}")
    return digest


def _difference(name: str, before: str | None, after: str | None) -> str:
    if before is None:
        return f"{name}: only the second has it, {_excerpt(after or '', 0)}"
    if after is None:
        return f"{name}: only the first has it, {_excerpt(before, 0)}"
    pairs = enumerate(zip(before, after, strict=False))
    same = next((at for at, (left, right) in pairs if left != right), min(len(before), len(after)))
    return f"{name}: {_excerpt(before, same)} became {_excerpt(after, same)}"


def _excerpt(value: str, differs_at: int) -> str:
    """The value in quotes, cut to the part around the first difference when it is long."""
    start = max(0, differs_at - _SHOWN // 2) if len(value) > _SHOWN else 0
    cut = value[start : start + _SHOWN]
    return f"{'…' if start else ''}{cut!r}{'…' if start + _SHOWN < len(value) else ''}"
