"""No sandbox: the control of the scoreboard itself, in which every probe must escape."""
OFFERS = {"time", "memory", "processes"}


def version():
    return "none"


def prepare(world):
    pass


def command(world):
    return [world.python, "-s", "-E", "-B", world.script]
