"""The harnesses of `test_hostile`: one file, whose `run` does what the task names."""

HOSTILE = '''
import asyncio, json, random, struct, time

os = random._os
socket = asyncio.base_events.socket


def raw(env, payload):
    """Writes to the pipe past the runtime."""
    data = struct.pack("!I", len(payload)) + payload
    while data:
        try:
            data = data[env._channel._sock.send(data):]
        except BlockingIOError:
            pass


def forge(env, **message):
    raw(env, json.dumps(message).encode())


async def silence():
    await asyncio.get_running_loop().create_future()


async def good(model, env):
    chat = model.chat()
    chat.user("hello")
    await chat.reply()
    chat.tool(await env.search("x"))
    return await chat.reply()


async def hangs(model, env):
    await silence()

async def sleeps_in_the_loop(model, env):
    time.sleep(3600)

async def loops(model, env):
    while True:
        pass

async def swallows_everything(model, env):
    while True:
        try:
            await asyncio.sleep(1)
        except BaseException:
            pass

async def raises(model, env):
    return {}["missing"]

async def exits(model, env):
    raise SystemExit(0)

async def leaves_at_once(model, env):
    os._exit(0)

async def aborts(model, env):
    os.abort()

async def crashes_natively(model, env):
    for kind in object.__subclasses__():
        if kind.__name__ == "CDLL":
            kind.__init__.__globals__["memset"](0, 0, 1)

async def takes_memory(model, env):
    kept = []
    while True:
        kept.append(bytearray(1 << 24))

async def recurses(model, env):
    def deeper(n):
        return deeper(n + 1) + 1
    return deeper(0)

async def raises_the_unprintable(model, env):
    class Evil(BaseException):
        def __str__(self):
            raise Evil()
    raise Evil()

async def raises_a_long_message(model, env):
    raise ValueError("x" * 10_000_000)

async def prints_without_end(model, env):
    for _ in range(20_000):
        print("x" * 1000)
    return await good(model, env)

async def floods_with_calls(model, env):
    while True:
        await model.count_tokens("x")

async def floods_with_operations(model, env):
    chat = model.chat()
    for _ in range(100_000):
        chat.user("x")
    return await chat.reply()

async def floods_with_bytes(model, env):
    while True:
        await model.count_tokens("x" * 1_000_000)

async def sends_garbage(model, env):
    raw(env, b"\\xff\\xfe garbage")
    await silence()

async def sends_no_object(model, env):
    raw(env, b"[1, 2]")
    await silence()

async def announces_a_huge_message(model, env):
    env._channel._sock.send(b"\\xff\\xff\\xff\\xff")
    await silence()

async def sends_huge_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["count_tokens", "' + b"x" * (5 << 20) + b'"]}')
    await silence()

async def sends_deep_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    await silence()

async def sends_rather_deep_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ' + b"[" * 100 + b"]" * 100 + b"}")
    await silence()

async def sends_nan(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["env", "search", [{"$value": NaN}], {}]}')
    await silence()

async def sends_a_huge_integer(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["env", "search", [{"$value": ' + b"9" * 100_000 + b'}], {}]}')
    await silence()

async def sends_a_surrogate(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["count_tokens", "\\\\ud800"]}')
    await silence()

async def writes_a_surrogate(model, env):
    model.chat().user("\\ud800")

async def writes_a_nul(model, env):
    chat = model.chat()
    chat.user("a\\0b")
    return await chat.reply()

async def passes_what_is_no_json(model, env):
    return await env.search(object())

async def passes_a_cycle(model, env):
    a = []
    a.append(a)
    return await env.search(a)

async def calls_the_unknown(model, env):
    forge(env, id=0, ops=[], call=["weights"])
    await silence()

async def calls_a_private_primitive(model, env):
    forge(env, id=0, ops=[], call=["env", "__class__", [], {}])
    await silence()

async def uses_an_unknown_chat(model, env):
    forge(env, id=0, ops=[], call=["reply", 5, None])
    await silence()

async def uses_a_negative_chat(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", -1, None])
    await silence()

async def uses_true_as_a_number(model, env):
    forge(env, id=True, ops=[["open", False, None, []]], call=["reply", False, True])
    await silence()

async def opens_chats_out_of_order(model, env):
    forge(env, id=0, ops=[["open", 7, None, []]], call=["reply", 7, None])
    await silence()

async def adds_a_foreign_reply(model, env):
    forge(env, id=0, ops=[["open", 0, None, []], ["append", 0, "reply", 99, None]], call=["reply", 0, None])
    await silence()

async def passes_a_foreign_result(model, env):
    forge(env, id=0, ops=[["open", 0, None, []], ["append", 0, "tool", None, 99]], call=["reply", 0, None])
    await silence()

async def plays_a_foreign_reply(model, env):
    forge(env, id=0, ops=[], call=["env", "play", [{"$reply": 99}], {}])
    await silence()

async def asks_for_negative_tokens(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", 0, -1])
    await silence()

async def samples_one_chat_twice_at_once(model, env):
    chat = model.chat()
    await asyncio.gather(chat.reply(), chat.reply())

async def forges_a_second_call_on_a_busy_chat(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", 0, None])
    forge(env, id=1, ops=[], call=["reply", 0, None])
    await silence()

async def calls_a_thousand_times_at_once(model, env):
    for number in range(1000):
        forge(env, id=number, ops=[], call=["env", "slow", [], {}])
    await silence()

async def returns_a_string(model, env):
    return "<answer>42</answer>"

async def returns_nothing(model, env):
    await good(model, env)

async def returns_a_forged_reply(model, env):
    reply = await model.chat().reply()
    object.__setattr__(reply, "_id", 99)
    return reply

async def returns_an_unhashable_id(model, env):
    reply = await model.chat().reply()
    object.__setattr__(reply, "_id", [1])
    return reply

async def forges_the_end(model, env):
    forge(env, done=0)
    await silence()

async def returns_an_earlier_reply(model, env):
    chat = model.chat()
    first = await chat.reply()
    await chat.reply()
    return first

async def closes_the_pipe_and_goes_on(model, env):
    os.close(env._channel._sock.fileno())
    while True:
        pass

async def forks_without_end(model, env):
    while True:
        os.fork()

async def starts_a_thread(model, env):
    asyncio.base_events.threading._start_new_thread(print, ())

async def uses_the_executor(model, env):
    await asyncio.to_thread(print)

async def starts_a_program(model, env):
    await asyncio.create_subprocess_exec("/bin/sh", "-c", "sleep 1000")

async def becomes_a_daemon(model, env):
    if os.fork() == 0:
        os.setsid()

async def reads_a_file(model, env):
    os.open("/etc/passwd", os.O_RDONLY)

async def reads_through_ast(model, env):
    import tokenize
    tokenize.open("/etc/passwd")

async def writes_a_file(model, env):
    os.open("/tmp/x", os.O_WRONLY | os.O_CREAT)

async def opens_a_connection(model, env):
    await asyncio.open_connection("127.0.0.1", 80)

async def resolves_a_name(model, env):
    socket.getaddrinfo("metadata.google.internal", 80)

async def duplicates_descriptors(model, env):
    while True:
        os.dup(env._channel._sock.fileno())

async def kills_its_parent(model, env):
    os.kill(os.getppid(), 9)

async def imports_what_is_not_listed(model, env):
    __import__("subprocess")

async def imports_what_is_not_loaded(model, env):
    __import__("json.tool")

async def opens_by_builtin(model, env):
    open("/etc/passwd")

async def bombs_at_the_end(model, env):
    class Bomb:
        def __del__(self):
            while True:
                pass
    global kept
    kept = Bomb()
    return await good(model, env)

async def patches_the_runtime(model, env):
    type(env._channel).call = None
    json.dumps = None
    return await good(model, env)

async def leaves_a_mark(model, env):
    assert not hasattr(json, "mark")
    json.mark = True
    return await good(model, env)


async def run(task, model, env):
    return await globals()[task.how](model, env)
'''
