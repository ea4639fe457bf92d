#!/usr/bin/env python3
"""A small convolutional network on synthetic images with TensorFlow 1's sessions: variables and their updates are on
parameter servers, gradients come from all workers, and worker 0 drives them in one synchronous session. One process per
task, each with its TF_CONFIG, which names the tasks of the jobs ps and worker; all but worker 0 serve until they are ended."""
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np  # noqa: E402  TensorFlow's log level is read when it is imported
import tensorflow as tf  # noqa: E402

import loop  # noqa: E402

tf1 = tf.compat.v1
SIZE, CLASSES = 32, 10


def shapes_of(width, units, hidden):
    """Of the weights, layer by layer."""
    shapes = {"conv0": (3, 3, 3, width), "conv1": (3, 3, width, 2 * width)}
    n_in = SIZE * SIZE // 16 * 2 * width
    for layer in range(hidden):
        shapes["fc%d" % layer], n_in = (n_in, units), units
    return {**shapes, "fc%d" % hidden: (n_in, CLASSES)}


def variable(name, shape, seed):
    scale = (2 / np.prod(shape[:-1])) ** 0.5 if len(shape) > 1 else 0
    return tf1.get_variable(name, initializer=tf1.random_normal(shape, stddev=scale, seed=seed))


def parameters(shapes, seed):
    made = {}
    for number, (name, shape) in enumerate(shapes.items()):
        made[name] = variable(name + "_w", shape, seed + number), variable(name + "_b", shape[-1:], seed)
    return made


def loss_of(images, labels, made):
    x = images
    for name in ("conv0", "conv1"):
        w, b = made[name]
        x = tf1.nn.max_pool(tf1.nn.relu(tf1.nn.bias_add(tf1.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"), b)),
                            [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    x = tf1.reshape(x, (-1, made["fc0"][0].shape[0]))
    layers = [pair for name, pair in made.items() if name.startswith("fc")]
    for number, (w, b) in enumerate(layers):
        x = tf1.matmul(x if number == 0 else tf1.nn.relu(x), w) + b
    return tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))


def main():
    parser = loop.convolutional("a convolutional network on a TensorFlow parameter server")
    parser.add_argument("--units", type=int, default=0, help="of a hidden layer; 0: 16 times the width")
    args = parser.parse_args()

    tf1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]
    threads = int(os.environ.get("OMP_NUM_THREADS", 0))
    server = tf1.train.Server(cluster, job_name=task["type"], task_index=task["index"], config=tf1.ConfigProto(
        intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2 * threads))
    if (task["type"], task["index"]) != ("worker", 0):
        server.join()

    workers = cluster.num_tasks("worker")
    # one server after the other: a layer's weights, its biases, the next layer's weights, ...
    with tf1.device(tf1.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0", merge_devices=True)):
        made = parameters(shapes_of(args.width, args.units or 16 * args.width, args.hidden), args.seed + 1)
    variables = [part for pair in made.values() for part in pair]
    losses, gradients = [], []
    for worker in range(workers):
        with tf1.device("/job:worker/task:%d" % worker), tf1.name_scope("tower%d" % worker):
            images = tf1.random_normal((args.batch_size, SIZE, SIZE, 3), seed=1000 * args.seed + worker)
            labels = tf1.random_uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32, seed=args.seed + worker)
            losses.append(loss_of(images, labels, made))
            gradients.append(tf1.gradients(losses[-1], variables))
    means = []
    for made_there, parts in zip(variables, zip(*gradients)):
        with tf1.device(made_there.device):
            means.append(tf1.add_n(list(parts)) / workers)
    with tf1.device("/job:ps/task:0"):
        train = tf1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(means, variables))

    with tf1.Session(server.target) as session:
        session.run(tf1.global_variables_initializer())
        loop.train(args, lambda: float(session.run([losses[0], train])[0]), True, "%d workers" % workers)


if __name__ == "__main__":
    main()
