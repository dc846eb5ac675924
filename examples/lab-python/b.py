"""Commits the offset after the database, and remembers nothing: what is delivered twice is applied twice."""

from common import Database, consume, credit

database = Database()


def handle(event_id, event):
    database.in_transaction(lambda cursor: credit(cursor, event_id, event))


if __name__ == "__main__":
    consume(handle)
