"""The same with an inbox: the id goes into the transaction of its effect, under a unique key."""

import sys

from common import Database, consume, credit

CONSUMER = "wallet"
CLAIM = """
    INSERT INTO inbox (consumer, id) VALUES (%s, %s)
    ON CONFLICT DO NOTHING RETURNING id
"""

database = Database()


def once(cursor, event_id, event):
    """True when the effect was applied; False when the id was known."""
    if cursor.execute(CLAIM, (CONSUMER, event_id)).fetchone() is None:
        return False
    credit(cursor, event_id, event)
    return True


def handle(event_id, event):
    if not database.in_transaction(lambda cursor: once(cursor, event_id, event)):
        print(f"skipped duplicate {event_id}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    consume(handle)
