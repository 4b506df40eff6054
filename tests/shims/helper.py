import functools
NAME = 'sibling'
def run(**k): return 'imported'
def bare(f):
  def inner(**k): return f(**k)
  return inner
def wraps(f):
  @functools.wraps(f)
  def inner(**k): return f(**k)
  return inner
class Base:
  @staticmethod
  def go(): return 'inherited'
class Kept:
  def __init__(self, f): self.f = f
  def __call__(self, **k): return self.f(**k)
