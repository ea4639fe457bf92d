#!/usr/bin/env python3
"""Trains the paper's networks in small with TensorFlow's ring (MultiWorkerMirroredStrategy): one process a worker, each with its TF_CONFIG;
or with Horovod (--horovod, under horovodrun). bench/memory_models.py has them for PyTorch."""
import contextlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402  its log level is read when it is imported

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "examples"))
import loop  # noqa: E402

LAYERS = tf.keras.layers
CLASSES, SIZE, WORDS, LENGTH = 100, 48, 2048, 64


def conv(x, width, size=3, stride=1, norm=True):
    x = LAYERS.Conv2D(width, size, stride, padding="same", use_bias=not norm)(x)
    return LAYERS.ReLU()(LAYERS.BatchNormalization()(x) if norm else x)


def bert(x):
    x = LAYERS.Embedding(WORDS, 128)(x)
    for _ in range(3):
        x = LAYERS.LayerNormalization()(x + LAYERS.MultiHeadAttention(4, 32)(x, x))
        x = LAYERS.LayerNormalization()(x + LAYERS.Dense(128)(LAYERS.Dense(512, activation="gelu")(x)))
    return LAYERS.GlobalAveragePooling1D()(x)


def resnet(x):
    x = conv(x, 32)
    for width, stride in ((32, 1), (64, 2), (128, 2), (256, 2)):
        short = LAYERS.Conv2D(width, 1, stride, use_bias=False)(x)
        x = LAYERS.ReLU()(short + LAYERS.BatchNormalization()(LAYERS.Conv2D(width, 3, padding="same")(conv(x, width, 3, stride))))
    return LAYERS.GlobalAveragePooling2D()(x)


def vgg(x):
    for width in (32, 64, 128):
        x = LAYERS.MaxPooling2D()(conv(conv(x, width, norm=False), width, norm=False))
    return LAYERS.Dense(256, activation="relu")(LAYERS.Dense(512, activation="relu")(LAYERS.Flatten()(x)))


def inception(x):
    x = conv(x, 32, 3, 2)
    for width in (16, 24, 32):
        x = LAYERS.Concatenate()([conv(x, width, 1), conv(conv(x, width, 1), width), conv(conv(conv(x, width, 1), width), width),
                                  conv(LAYERS.MaxPooling2D(3, 1, "same")(x), width, 1)])
        x = LAYERS.MaxPooling2D()(x)
    return LAYERS.GlobalAveragePooling2D()(x)


NETWORKS = {"bert": bert, "resnet": resnet, "vgg": vgg, "inception": inception}


class Ring:
    def __init__(self):
        self._options = tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=self._options)
        self.scope, self.rank = self._strategy.scope, self._strategy.cluster_resolver.task_id
        self.who = "%d workers" % self._strategy.num_replicas_in_sync

    def run(self, step, batch, labels):
        return self._strategy.run(step, args=(batch, labels))

    def gradients(self, tape, loss, variables):
        found = list(map(tf.convert_to_tensor, tape.gradient(loss, variables)))  # an embedding's too
        return tf.distribute.get_replica_context().all_reduce("mean", found, options=self._options)

    def value(self, loss):
        return float(self._strategy.experimental_local_results(loss)[0])


class Horovod:
    scope, value = contextlib.nullcontext, staticmethod(float)

    def __init__(self):
        import horovod.tensorflow
        self._hvd = horovod.tensorflow
        self._hvd.init()
        self.rank, self.who = self._hvd.rank(), "%d ranks" % self._hvd.size()

    def run(self, step, batch, labels):
        return step(batch, labels)

    def gradients(self, tape, loss, variables):
        return self._hvd.DistributedGradientTape(tape, sparse_as_dense=True).gradient(loss, variables)


def main():
    parser = loop.arguments(__doc__.splitlines()[0], 8)
    parser.add_argument("--model", choices=NETWORKS, required=True)
    parser.add_argument("--horovod", action="store_true", help="in place of TensorFlow's ring")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.utils.set_random_seed(args.seed)
    job = Horovod() if args.horovod else Ring()
    shape, kind = ((LENGTH,), tf.int32) if args.model == "bert" else ((SIZE, SIZE, 3), tf.float32)
    with job.scope():
        given = tf.keras.Input(shape, dtype=kind)
        model = tf.keras.Model(given, LAYERS.Dense(CLASSES)(NETWORKS[args.model](given)))
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    @tf.function
    def train_step(batch, labels):
        def replica(batch, labels):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_of(labels, model(batch, training=True)))
            for gradient, variable in zip(job.gradients(tape, loss, model.trainable_variables), model.trainable_variables):
                variable.assign_sub(0.01 * gradient)
            return loss
        return job.run(replica, batch, labels)

    generator = tf.random.Generator.from_seed(args.seed)

    def step():
        batch = generator.uniform((args.batch_size, *shape), maxval=WORDS, dtype=kind) if kind.is_integer else (
            generator.normal((args.batch_size, *shape)))
        labels = generator.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
        return job.value(train_step(batch, labels))

    loop.train(args, step, job.rank == 0, job.who)


if __name__ == "__main__":
    main()
