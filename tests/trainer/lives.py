"""Lives of a trainer, one after another, each of them a process or several, any of them cut short by a real signal.

`python lives.py` reads a JSON list of lives from its standard input and prints, for each, the statuses and the output of
its ranks. Torch is imported once and the lives are forked, so that ten of them cost little more than one. A life is:

    arguments  of `python -m trainer`
    environ    more environment
    ranks      how many processes train together (1)
    act        what happens in the life: "KILL", "TERM", "STOP" (the signal comes before that update), "NAN" (the update's
               loss is not a number), or "KILL-SAVE" (SIGKILL when half of that snapshot is written)
    step, rank when and to which rank, the first unless told
"""

import io
import json
import math
import os
import signal
import socket
import sys
import tempfile
import time
import traceback

import torch
import torch._dynamo
import torch._inductor.config

from trainer import train
from trainer.__main__ import main

LONGEST_SECONDS = 60


def prepare(act, step):
    """Make happen in this process what is to happen."""
    update, loss_of, save = train.update, train.loss_of, torch.save

    def spoiled(*arguments):
        return loss_of(*arguments) * math.nan

    def act_before(run, now):
        train.loss_of = spoiled if (act, step) == ("NAN", now) else loss_of
        if act in ("KILL", "TERM", "STOP") and step == now:
            os.kill(os.getpid(), getattr(signal, f"SIG{act}"))
        return update(run, now)

    def save_half(payload, file, **options):
        if not isinstance(payload, dict) or payload.get("iter_num") != step:
            return save(payload, file, **options)
        whole = io.BytesIO()
        save(payload, whole)
        file.write(whole.getvalue()[: whole.tell() // 2])
        file.flush()
        return os.kill(os.getpid(), signal.SIGKILL)

    train.update = act_before
    if act == "KILL-SAVE":
        torch.save = save_half


def live(life, output, **environ):
    """Be one process of a life; does not return."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.environ.update(life.get("environ", {}), **environ)
    if life.get("rank", 0) == int(environ.get("RANK", "0")):
        prepare(life.get("act"), life.get("step"))
    try:
        status = main(life["arguments"])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        if status == 1 and error.code != 1:
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - a fork must not return into what it was forked from
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    os._exit(status)


def wait_for(processes):
    """The status of each, negative for a signal. One that is stopped is killed when the others have ended."""
    statuses = {}
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(statuses) < len(processes):
        time.sleep(0.005)
        stopped = 0
        for process in set(processes) - set(statuses):
            pid, status = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
            if pid and not os.WIFSTOPPED(status):
                statuses[pid] = os.waitstatus_to_exitcode(status)
            with open(f"/proc/{process}/stat") if process not in statuses else io.StringIO(") R") as file:
                stopped += file.read().rpartition(")")[2].split()[0] == "T"
        if time.monotonic() > deadline or (stopped and stopped + len(statuses) == len(processes)):
            for process in set(processes) - set(statuses):
                os.kill(process, signal.SIGKILL)
    return [statuses[process] for process in processes]


def go_through(life):
    """Start a life's processes and tell how they ended."""
    count = life.get("ranks", 1)
    environs = [{}]
    if count > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
        environs = [there | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    outputs = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in environs]  # noqa: SIM115 - closed below
    processes = []
    for environ, output in zip(environs, outputs, strict=True):
        processes.append(os.fork())
        if processes[-1] == 0:
            live(life, output, **environ)
    statuses = wait_for(processes)
    told = []
    for output in outputs:
        with output:
            output.seek(0)
            told.append(output.read())
    return {"statuses": statuses, "outputs": told}


if __name__ == "__main__":
    print(json.dumps([go_through(life) for life in json.load(sys.stdin)]))
