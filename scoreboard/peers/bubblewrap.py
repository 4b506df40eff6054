"""bubblewrap: all namespaces new, only system folders and what is granted shown, no variables, a session of its own."""
import os
import shutil
import subprocess

# It has no limits; those of a shell (ulimit) or of systemd are other programs.
OFFERS = set()


def version():
    return subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.split()[-1] if shutil.which("bwrap") else None


def prepare(world):
    pass


def command(world):
    line = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin",
            "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--ro-bind", world.own, world.own,
            "--ro-bind", world.granted, world.granted, "--bind", world.out, world.out, "--chdir", world.own, "--cap-drop", "ALL"]
    python = os.path.dirname(os.path.dirname(os.path.realpath(world.python)))
    if python != "/usr":
        line += ["--ro-bind", python, python]
    return line + ["--", os.path.realpath(world.python), "-s", "-E", "-B", world.script]
