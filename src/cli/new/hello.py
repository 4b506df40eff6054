"""Counts the characters and words of a text.

toolhost calls run() with the arguments; what it returns is the result, what it prints goes to the log.
"""


def run(text):
    return {"characters": len(text), "words": len(text.split())}
