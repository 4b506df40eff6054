import os, time
HERE = os.path.dirname(__file__)

def waits():
    yield 'one'
    while not os.path.exists(HERE + '/made'): time.sleep(0.01)
    yield {'n': 2}

async def text():
    yield 'a'
    yield 'b'

def whole():
    print('log')
    yield 1
    return {'sum': 1}

def none():
    if False: yield

def breaks():
    yield 1
    raise ValueError('in the middle')

def odd():
    yield 1
    yield {1, 2}

def long():
    yield 1
    yield 'x' * 300000
    time.sleep(20)

def much():
    while True: yield 'x' * 1000

def unfit():
    yield 1
    yield 'two'

def endless():
    yield 1
    while True: time.sleep(0.01)

def pours():
    for n in range(120): yield 'x' * 100000
    return 'all'
