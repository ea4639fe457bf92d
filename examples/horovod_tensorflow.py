#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with Horovod and TensorFlow:
`horovodrun --gloo -np 2 python horovod_tensorflow.py`, or alone."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import horovod.tensorflow as hvd  # noqa: E402  TensorFlow's log level is read when it is imported
import tensorflow as tf  # noqa: E402

import loop  # noqa: E402
from tensorflow_ring import CLASSES, SIZE, network  # noqa: E402


def main():
    parser = loop.convolutional("a convolutional network with Horovod on TensorFlow")
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

    def step():
        images = generator.normal((args.batch_size, SIZE, SIZE, 3))
        labels = generator.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
        return float(train_step(images, labels))

    loop.train(args, step, hvd.rank() == 0, "%d ranks" % hvd.size())


if __name__ == "__main__":
    main()
