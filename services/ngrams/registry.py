"""The n-gram stores of this process: one for each tokenizer, shipped with the package or named."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from slipstream.core.errors import InvalidRequest, ModelMismatch
from slipstream.ngrams.store_file import SUFFIX, NgramFile

AUTO, NONE = "auto", "none"
_SHIPPED = Path(__file__).parent.parent / "models" / "weights"


class NgramStores:
    """Stores by the hash of the tokenizer that they hold token ids of."""

    def __init__(self, names: Iterable[str] = (AUTO,)) -> None:
        """`names` are files, or auto for those of the package; a later one takes precedence.

        Raises `WeightsError` for a file that is no store, `InvalidRequest` for one that is missing.
        """
        self._stores: dict[str, NgramFile] = {}
        for name in names:
            for path in sorted(_SHIPPED.glob("*" + SUFFIX)) if name == AUTO else (_file(name),):
                store = open_store(path)
                self._stores[store.header.tokenizer_hash] = store

    def of(self, tokenizer_hash: str, *, vocab_size: int) -> NgramFile | None:
        """Return the store of a tokenizer; None without one, or where it has larger token ids."""
        store = self._stores.get(tokenizer_hash)
        return None if store is None or store.header.vocab_size > vocab_size else store


@cache
def open_store(path: Path) -> NgramFile:
    """Return the store in a file, mapped once in a process. Raises `WeightsError`."""
    return NgramFile(path)


def store_named(name: str, tokenizer_hash: str, *, vocab_size: int) -> NgramFile | None:
    """Return the store that `name` stands for: auto is the package's, none is none, else a file.

    Raises `ModelMismatch` for a file of another tokenizer, and what `NgramStores` does.
    """
    if name == NONE:
        return None
    store = NgramStores((name,)).of(tokenizer_hash, vocab_size=vocab_size)
    if store is None and name != AUTO:
        raise ModelMismatch(f"the n-grams in {name} are of another tokenizer than the target's")
    return store


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        raise InvalidRequest(
            f"ngrams is {name!r}, but must be auto, none or a file of `slipstream train ngrams`"
        )
    return path
