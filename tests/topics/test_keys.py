"""Keys of topics: parsed as built, in offset order, and no topic's range touches another's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.storage.keys import KeySpace, join, u32, u64
from tidegate.topics import keys

# Of consumer groups, routes, payload schemas and the parts of batches: other modules lay these.
OTHERS = (
    KeySpace.TOPIC_GROUP,
    KeySpace.TOPIC_LEASE,
    KeySpace.TOPIC_ROUTE,
    KeySpace.TOPIC_SCHEMA,
    KeySpace.TOPIC_PART,
)

_id = st.integers(1, 2**40)
_partition = st.integers(0, 65_535)
_offset = st.integers(0, keys.OFFSET_END)
_place = st.tuples(_id, _partition, _offset)


@given(_place, _place)
def test_byte_order_is_topic_partition_offset_order(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (keys.record_key(*one) < keys.record_key(*other)) == (one < other)


@given(_id, _partition, _offset)
def test_keys_parse_as_built(topic_id: int, partition: int, offset: int) -> None:
    assert keys.base_offset_of(keys.record_key(topic_id, partition, offset)) == offset
    time_key = keys.time_key(topic_id, partition, -offset, offset)
    assert keys.time_of(time_key) == (-offset, offset)
    span = keys.time_range(topic_id, partition)
    assert span.start <= time_key < span.stop
    assert keys.topic_id_of(keys.definition_key(topic_id)) == topic_id


@given(_id, _id, _partition, _offset, st.text())
def test_everything_of_a_topic_holds_its_keys_and_no_others(
    topic_id: int, other: int, partition: int, offset: int, producer: str
) -> None:
    for number in (topic_id, other):
        made = [
            keys.record_key(number, partition, offset),
            keys.counter_key(number, partition),
            keys.producer_key(number, producer),
            keys.time_key(number, partition, -offset, offset),
            *(join(space, u64(number), u32(partition)) for space in OTHERS),
        ]
        inside = [any(span.start <= key < span.stop for span in keys.everything_of(topic_id)) for key in made]
        assert inside == [number == topic_id] * len(made)
