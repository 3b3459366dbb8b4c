"""Commit records: small files in which every changed byte is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.checkpoint.commit_record import (
    CommitRecord,
    StoredFile,
    commit_record_name,
    committed_batches,
    decode_commit_record,
    encode_commit_record,
    read_commit_record,
)
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

HEAD = CommitRecord(
    epoch=1,
    partition=2,
    batch=30,
    commit_id="abc",
    plan_id="plan",
    attempt="attempt ü",
    changes=StoredFile("v30.abc.changes", 100, "00ff", 7),
    out=StoredFile("v30.abc.out", 200, "11ee", 3),
    dead=None,
    rows_in=9,
    rows_out=3,
    dead_rows=0,
    newest_event_ms=1_700_000_000_000,
    next_event_timer_ms=None,
    next_processing_timer_ms=5,
    watermark_ms=None,
    batch_time_ms=6,
    schema=1,
    size_bytes=1_000,
    entry_count=50,
    log_bytes=400,
    published_at_ms=7,
    took_ms=8,
)


def test_a_head_is_read_as_it_was_written() -> None:
    assert decode_commit_record(encode_commit_record(HEAD), "here") == HEAD
    other = replace(HEAD, out=None, dead=HEAD.out)
    assert decode_commit_record(encode_commit_record(other), "here") == other


def test_every_changed_cut_or_added_byte_is_noticed() -> None:
    content = encode_commit_record(HEAD)
    for at in range(len(content)):
        changed = bytearray(content)
        changed[at] ^= 0x01
        for damaged in (bytes(changed), content[:at]):
            with pytest.raises(StorageCorrupt, match="here"):
                decode_commit_record(damaged, "here")
    with pytest.raises(StorageCorrupt):
        decode_commit_record(content + b"\n", "here")


def test_a_newer_format_and_foreign_fields_are_refused() -> None:
    with pytest.raises(StorageCorrupt, match="format is 2"):
        decode_commit_record(seal({"format": 2}), "here")
    with pytest.raises(StorageCorrupt, match="no commit record"):
        decode_commit_record(seal({"format": 1, "epoch": 1}), "here")
    assert unseal(seal({"format": 1, "text": 'a,"checksum":"b'}), "here", 1)["text"] == 'a,"checksum":"b'


def test_the_batches_that_have_heads_are_listed_in_order(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for batch in (10, 9, 100):
        store.put_new(commit_record_name(1, 2, batch), encode_commit_record(replace(HEAD, batch=batch)))
    store.put_new("e1/2/v7.abc.changes", b"")
    assert committed_batches(store, 1, 2) == [9, 10, 100]
    assert read_commit_record(store, 1, 2, 9) == replace(HEAD, batch=9)
    assert read_commit_record(store, 1, 2, 8) is None
