#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with MultiWorkerMirroredStrategy: gradients are reduced
around a ring over gRPC. One process per worker, each with its TF_CONFIG; alone without.

    TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}' python tensorflow_ring.py"""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402  its log level is read when it is imported

import loop  # noqa: E402

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
    parser = loop.convolutional("a convolutional network on TensorFlow workers")
    parser.add_argument("--bytes-per-pack", type=int, default=0, help="gradients that travel together; 0: all")
    args = parser.parse_args()

    threads = int(os.environ.get("OMP_NUM_THREADS", 0))
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2 * threads)
    tf.keras.utils.set_random_seed(args.seed)  # the same parameters on every worker
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=args.bytes_per_pack, implementation=tf.distribute.experimental.CommunicationImplementation.RING)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    rank = strategy.cluster_resolver.task_id or 0

    with strategy.scope():
        model = network(args.width, args.hidden)
        momenta = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in model.trainable_variables]
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    generator = tf.random.Generator.from_seed(1000 * args.seed + rank)

    @tf.function
    def train_step(images, labels):
        def replica(images, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(labels, model(images, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients,
                                                                       options=options)
            for gradient, momentum, variable in zip(gradients, momenta, model.trainable_variables):
                momentum.assign(0.9 * momentum + gradient)
                variable.assign_sub(0.01 * momentum)
            return loss
        return strategy.run(replica, args=(images, labels))

    def step():
        images = generator.normal((args.batch_size, SIZE, SIZE, 3))
        labels = generator.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
        return float(strategy.experimental_local_results(train_step(images, labels))[0])

    loop.train(args, step, rank == 0, "%d workers" % strategy.num_replicas_in_sync)


if __name__ == "__main__":
    main()
