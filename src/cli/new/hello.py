"""Counts the characters and words of a text.

toolhost calls run() with the arguments. Its return value is the result; printed text goes to the log.
"""


def run(text):
    return {"characters": len(text), "words": len(text.split())}
