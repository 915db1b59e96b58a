"""What makes two tokenizers the same to a model: how they number their tokens."""

import hashlib
from collections.abc import Mapping


def vocab_hash(vocab: Mapping[str, int]) -> str:
    """SHA-256 over the (id, token) pairs in id order: equal for tokenizers that number alike."""
    digest = hashlib.sha256()
    for token, index in sorted(vocab.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{index}\t{token}\n".encode())
    return digest.hexdigest()
