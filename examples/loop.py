"""What the examples share whatever their framework: arguments, and the loop that trains and prints how long a step took."""
import argparse
import statistics
import time


def arguments(description, batch_size=16):
    """The options that every example has; each adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps to train")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="samples a step and rank")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and data")
    return parser


def convolutional(description):
    """Those of a small convolutional network."""
    parser = arguments(description)
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--hidden", type=int, default=1, help="dense layers before the last")
    return parser


def train(args, step, prints, who):
    """step() trains one and returns its loss, which `prints` on the process that knows it; `who` trains."""
    times_ms, loss = [], None
    begin = time.perf_counter()
    for number in range(1, args.steps + 1):
        loss = step()
        end = time.perf_counter()
        times_ms.append(1e3 * (end - begin))
        begin = end
        if prints and (number % 10 == 0 or number == args.steps):
            print("step %4d  loss %.6f  %8.1f ms" % (number, loss, statistics.median(times_ms[-10:])), flush=True)
    if prints and times_ms:
        steady = times_ms[len(times_ms) // 4:]
        print("median step time %.1f ms over the last %d steps, %s, final loss %r"
              % (statistics.median(steady), len(steady), who, loss), flush=True)
