"""A pipeline that reads a topic and writes another, through kills of server, worker and Java.

Whatever is tried again, each message of the one is in the other exactly once.
"""

from __future__ import annotations

import tidegate
from tests.crash.cluster import Cluster
from tests.crash.history import Fault
from tests.crash.workload import PARTITIONS, TopicToLake, doubles, topic_rows

SOURCE, TARGET = "crash.sink_source", "crash.sink_target"

PIPELINE = f'''
from tidegate import spark as tide


@tide.pipeline(name="crash_sink")
def crash_sink(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "{SOURCE}").load()
    return rows.select("key", "payload").writeStream.format("tidegate.topic").option("topic", "{TARGET}")
'''


class TopicToTopic(TopicToLake):
    """Producers that send each request until it is acknowledged, and a pipeline that carries all to a topic.

    Promises: those of the first topic, as ever; the second holds each message of the first once, and no
    other; what a reader of the second was given stays.
    """

    topic = SOURCE
    pipeline = PIPELINE
    file_name = "crash_sink.py"

    def prepare(self, cluster: Cluster) -> None:
        """Make both topics and start the pipeline."""
        with cluster.client() as client:
            client.topics.create(TARGET, partitions=PARTITIONS)
        super().prepare(cluster)

    def drained(self, client: tidegate.Client) -> bool:
        """The second topic has as many messages as were acknowledged, or more."""
        return int(client.topics.show(TARGET)["messages"]) >= len(self.acknowledged)

    def verify(self, cluster: Cluster) -> list[Fault]:
        """Compare acknowledgements and both topics."""
        _, faults = self.topic_faults(cluster)
        with cluster.client() as client:
            written = topic_rows(client, TARGET)
        return [*faults, *carried(list(self.acknowledged), written)]


def carried(sent: list[str], written: list[tuple[tuple[int, int], str]]) -> list[Fault]:
    """Find what did not come, came twice, or was never sent."""
    promise = "the sink writes each message once"
    found = {name for _, name in written}
    faults = doubles(promise, written)
    lost = tuple(name for name in sent if name not in found)
    if lost:
        faults.append(Fault(promise, f"{len(lost)} did not come", lost))
    strange = tuple(found - set(sent))
    if strange:
        faults.append(Fault(promise, f"{len(strange)} were never sent", strange))
    return faults
