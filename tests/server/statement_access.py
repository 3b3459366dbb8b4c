"""Who may run which statement: the truth, written by hand, as in `test_access`."""

from __future__ import annotations

EVERYONE = "rwapi"
# What one endpoint runs, statement by statement; namespace `own` and its tables are there.
READS_OWN, READS, WRITES, CHANGES = "rwapi", "rapi", "wapi", "api"
STATEMENTS = [
    ("SELECT 1", "sql.query", "rapi", 200),
    ("SELECT * FROM own.shared", "sql.query", "rapi", 200),
    ("SELECT * FROM own.shared WHERE id = 1", "sql.query", "rapi", 200),
    ("SELECT * FROM lake.nowhere", "sql.query", "rapi", 404),
    ("SELECT * FROM own.mine", "sql.read_own", READS_OWN, 200),
    ("SELECT * FROM own.mine WHERE id = 1", "sql.read_own", READS_OWN, 200),
    ("SELECT * FROM own.fleeting LAST 3", "sql.read_own", READS_OWN, 200),
    ("SHOW TABLES", "table.list", EVERYONE, 200),
    ("SHOW NAMESPACES", "table.list", EVERYONE, 200),
    ("DESCRIBE TABLE own.mine", "table.list", EVERYONE, 200),
    ("SELECT count(*) FROM system.columns", "table.list", EVERYONE, 200),
    ("SELECT count(*) FROM system.jobs", "job.list", "api", 200),
    ("SELECT count(*) FROM system.audit", "audit.list", "pi", 200),
    ("INSERT INTO own.nowhere VALUES (1)", "sql.write", WRITES, 404),
    ("UPSERT INTO own.mine VALUES (1, 1)", "sql.write", WRITES, 200),
    ("UPDATE own.shared SET n = 1 WHERE id = 100", "sql.write", WRITES, 200),
    ("DELETE FROM own.nowhere", "sql.write", WRITES, 404),
    ("CREATE NAMESPACE own", "table.create", CHANGES, 409),
    ("CREATE SHARED TABLE own.shared (id INT PRIMARY KEY)", "table.create", CHANGES, 409),
    ("ALTER TABLE own.nowhere ADD COLUMN x INT", "table.change", CHANGES, 404),
    ("ALTER TABLE own.nowhere SET (ttl_seconds = 5)", "table.change", CHANGES, 404),
    ("CREATE INDEX i ON own.nowhere (x)", "table.change", CHANGES, 404),
    ("DROP INDEX i ON own.nowhere", "table.change", CHANGES, 404),
    ("DROP TABLE own.nowhere", "table.drop", CHANGES, 404),
    ("DROP NAMESPACE nowhere", "table.drop", CHANGES, 404),
    ("SHOW TOPICS", "topic.list", EVERYONE, 200),
    ("SELECT count(*) FROM system.topic_offsets", "topic.groups", EVERYONE, 200),
    ("DESCRIBE TOPIC own.nowhere", "topic.show", EVERYONE, 404),
    ("SHOW CONSUMER GROUPS ON own.nowhere", "topic.groups", EVERYONE, 404),
    ("CONSUME FROM own.nowhere GROUP 'g'", "topic.consume", READS, 404),
    ("ACK own.nowhere GROUP 'g' UPTO OFFSET 1", "topic.ack", READS, 404),
    ("NACK own.nowhere GROUP 'g' LEASES ('0.1.1')", "topic.ack", READS, 404),
    ("EXTEND own.nowhere GROUP 'g' LEASES ('0.1.1')", "topic.ack", READS, 404),
    ("PUBLISH INTO own.nowhere VALUES ('1')", "topic.publish", WRITES, 404),
    ("CREATE TOPIC own.topic PARTITIONS 1000000", "topic.create", CHANGES, 422),
    ("ALTER TOPIC own.nowhere ADD SOURCE own.shared ON INSERT", "topic.change", CHANGES, 404),
    ("ALTER TOPIC own.nowhere DROP SOURCE own.shared", "topic.change", CHANGES, 404),
    ("ALTER TOPIC own.nowhere SET RETENTION NONE", "topic.change", CHANGES, 404),
    ("ALTER TOPIC own.nowhere ADD PARTITIONS 1", "topic.change", CHANGES, 404),
    ("CLEAR TOPIC own.nowhere", "topic.clear", CHANGES, 404),
    ("DROP TOPIC own.nowhere", "topic.delete", CHANGES, 404),
    ("RESET CONSUMER GROUP 'g' ON own.nowhere TO LATEST", "topic.reset", CHANGES, 404),
    ("DROP CONSUMER GROUP 'g' ON own.nowhere", "topic.reset", CHANGES, 404),
    ("EXECUTE AS 'eve' (SELECT * FROM own.mine)", "sql.execute_as", CHANGES, 200),
    ("EXECUTE AS 'eve' (UPSERT INTO own.mine VALUES (1, 1))", "sql.execute_as", CHANGES, 200),
]
# What no statement and no endpoint is: opening a live socket.
SOCKETS = {"live.open": EVERYONE}
# What no endpoint is either: to act on messages that are leased to another user.
OTHERS = {"topic.ack_others": CHANGES}
