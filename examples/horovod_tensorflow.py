#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with Horovod and TensorFlow:
`horovodrun --gloo -np 2 python horovod_tensorflow.py`, or alone."""
import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import horovod.tensorflow as hvd  # noqa: E402  TensorFlow's log level is read when it is imported
import tensorflow as tf  # noqa: E402

SIZE, CLASSES = 32, 10


def network(width, hidden):
    layers = [tf.keras.Input((SIZE, SIZE, 3))]
    for n_out in (width, 2 * width, 4 * width):
        layers += [tf.keras.layers.Conv2D(n_out, 3, padding="same"), tf.keras.layers.BatchNormalization(),
                   tf.keras.layers.ReLU(), tf.keras.layers.MaxPooling2D()]
    layers.append(tf.keras.layers.Flatten())
    layers += [tf.keras.layers.Dense(32 * width, activation="relu") for _ in range(hidden)]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(CLASSES)])


def main():
    parser = argparse.ArgumentParser(description="a convolutional network with Horovod on TensorFlow",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps to train")
    parser.add_argument("--batch-size", type=int, default=16, help="samples a step and rank")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--hidden", type=int, default=1, help="dense layers before the last")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and data")
    args = parser.parse_args()

    hvd.init()
    threads = int(os.environ.get("OMP_NUM_THREADS", 0))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2 * threads)
    tf.keras.utils.set_random_seed(args.seed)  # the same parameters on every rank
    model = network(args.width, args.hidden)
    momenta = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in model.trainable_variables]
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    generator = tf.random.Generator.from_seed(1000 * args.seed + hvd.rank())

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, momentum, variable in zip(gradients, momenta, model.trainable_variables):
            momentum.assign(0.9 * momentum + gradient)
            variable.assign_sub(0.01 * momentum)
        return loss

    times_ms, loss = [], None
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        images = generator.normal((args.batch_size, SIZE, SIZE, 3))
        labels = generator.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
        loss = float(train_step(images, labels))
        end = time.perf_counter()
        times_ms.append(1e3 * (end - begin))
        begin = end
        if hvd.rank() == 0 and (step % 10 == 0 or step == args.steps):
            print("step %4d  loss %.6f  %8.1f ms" % (step, loss, statistics.median(times_ms[-10:])), flush=True)
    if hvd.rank() == 0 and times_ms:
        steady = times_ms[len(times_ms) // 4:]
        print("median step time %.1f ms over the last %d steps, %d ranks, final loss %r"
              % (statistics.median(steady), len(steady), hvd.size(), loss), flush=True)


if __name__ == "__main__":
    main()
