"""What both consumers share: settings from the environment, the loop, the effect.

handstamp's lab sets BROKERS, TOPIC, GROUP and DATABASE_URL; lab.toml adds the rest.
"""

import json
import os
import sys
import time

import psycopg
from confluent_kafka import Consumer, KafkaException


def credit(cursor, event_id, event):
    """The effect: adding, so that twice is not the same as once."""
    cursor.execute(
        "UPDATE accounts SET balance = balance + %s WHERE id = %s",
        (event["amount"], event["account_id"]),
    )
    cursor.execute(
        "INSERT INTO ledger (id, account_id, amount) VALUES (%s, %s, %s)",
        (event_id, event["account_id"], event["amount"]),
    )


def event_id_of(message):
    """The producer's id; None when there is none."""
    for name, value in message.headers() or []:
        if name == "event_id" and value:
            return value.decode()
    return None


def read(message):
    """The message's id and content; None for one that nobody can use."""
    event_id = event_id_of(message)
    try:
        event = json.loads(message.value())
        int(event["account_id"]), int(event["amount"])
    except (TypeError, ValueError, KeyError):
        event = None
    if event_id is None or event is None:
        # A service of your own would keep it somewhere; here it is only said.
        print(f"unusable message at {message.partition()}:{message.offset()}", file=sys.stderr, flush=True)
        return None
    return event_id, event


def consume(handle):
    """Hands each message to `handle`, then commits its offset. Database first, offset second."""
    gap_s = float(os.environ.get("GAP_MS", "0")) / 1000
    session_ms = int(os.environ.get("SESSION_TIMEOUT_MS", "45000"))
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["BROKERS"],
            "group.id": os.environ["GROUP"],
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 6,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([os.environ["TOPIC"]])
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            print(f"consumer: {message.error()}", file=sys.stderr, flush=True)
            continue
        found = read(message)
        if found is not None:
            handle(*found)
        # Here a crash hurts those without an inbox; the lab makes it longer to hit it often.
        time.sleep(gap_s)
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            # The partition belongs to another member now, which gets this message again.
            print(f"offset not committed: {error}", file=sys.stderr, flush=True)


class Database:
    """One connection that is opened again when it was cut."""

    def __init__(self):
        self.connection = None

    def in_transaction(self, work):
        """Runs `work(cursor)` in one transaction, and again after a lost connection."""
        while True:
            try:
                if self.connection is None or self.connection.closed:
                    self.connection = psycopg.connect(os.environ["DATABASE_URL"])
                with self.connection.transaction(), self.connection.cursor() as cursor:
                    return work(cursor)
            except psycopg.OperationalError as error:
                print(f"database: {error}", file=sys.stderr, flush=True)
                if self.connection is not None:
                    self.connection.close()
                self.connection = None
                time.sleep(0.2)
