"""What is said about tokens that differ, and who reads them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deploy.bundles.export.tokens import read_file
from deploy.tools.errors import ExportFailed


def test_a_file_is_read_without_the_padding_and_cutting_baked_into_it(tmp_path):
    """Only the length that is asked for cuts."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding(length=5)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert [0, 1, 2, 0] == read_file(tmp_path)("a b c a")
    assert [0, 1] == read_file(tmp_path)("a", "b")
    assert [0, 1, 2] == read_file(tmp_path, 3)("a b c a")


def test_a_tokenizer_that_fails_on_a_text_is_refused_with_the_text(tmp_path):
    """Its unknown token is not in its vocabulary: that shows only at a word it does not know. So is a damaged file."""
    tokenizer = Tokenizer(models.WordPiece({"a": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert [0] == read_file(tmp_path)("a")
    with pytest.raises(ExportFailed, match=r'fails on "b": WordPiece error'):
        read_file(tmp_path)("b")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ExportFailed, match=r"tokenizer\.json cannot be loaded"):
        read_file(tmp_path)
