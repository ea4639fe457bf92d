#!/usr/bin/env python3
"""A small convolutional network on synthetic images with TensorFlow 1's sessions: each worker has all variables and updates
them itself, and each variable's gradient goes around a ring of all workers by a CollectiveReduce of its own. One process
per worker, each with its TF_CONFIG. Worker 0 drives all of them in one session; with --own-sessions each drives its own."""
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402  TensorFlow's log level is read when it is imported
from tensorflow.python.ops import collective_ops  # noqa: E402

import loop  # noqa: E402
from tensorflow_ps import CLASSES, SIZE, loss_of, parameters, shapes_of  # noqa: E402

tf1 = tf.compat.v1
GROUP, FIRST_INSTANCE = 1, 100


def tower(args, worker, workers):
    """A worker's loss and its update of its own variables."""
    with tf1.device("/job:worker/task:%d" % worker), tf1.variable_scope("tower%d" % worker):
        made = parameters(shapes_of(args.width, args.units or 16 * args.width, args.hidden), args.seed + 1)
        variables = [part for pair in made.values() for part in pair]
        images = tf1.random_normal((args.batch_size, SIZE, SIZE, 3), seed=1000 * args.seed + worker)
        labels = tf1.random_uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32, seed=args.seed + worker)
        loss = loss_of(images, labels, made)
        means = [collective_ops.all_reduce(gradient, workers, GROUP, FIRST_INSTANCE + number, merge_op="Add", final_op="Div",
                                           communication_hint=args.hint)
                 for number, gradient in enumerate(tf1.gradients(loss, variables))]
        optimizer = tf1.train.GradientDescentOptimizer(0.01)
        return loss, optimizer.apply_gradients(zip(means, variables))


def main():
    parser = loop.convolutional("a convolutional network whose gradients TensorFlow's collectives reduce")
    parser.add_argument("--units", type=int, default=0, help="of a hidden layer; 0: 16 times the width")
    parser.add_argument("--hint", default="auto", help="how TensorFlow is told to communicate: auto, ring")
    parser.add_argument("--own-sessions", action="store_true", help="each worker drives a session of its own")
    args = parser.parse_args()

    tf1.disable_eager_execution()
    tf1.disable_resource_variables()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = tf.train.ClusterSpec(config["cluster"]), config["task"]["index"]
    workers = cluster.num_tasks("worker")
    threads = int(os.environ.get("OMP_NUM_THREADS", 0))
    settings = tf1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2 * threads)
    settings.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    server = tf1.train.Server(cluster, job_name="worker", task_index=task, config=settings)
    if task > 0 and not args.own_sessions:
        server.join()

    towers = [tower(args, worker, workers) for worker in ([task] if args.own_sessions else range(workers))]
    loss_of_first, train = towers[0][0], tf1.group(*[update for _, update in towers])
    if args.own_sessions:
        settings.device_filters.append("/job:worker/task:%d" % task)
    with tf1.Session(server.target, config=settings) as session:
        session.run(tf1.global_variables_initializer())
        loop.train(args, lambda: float(session.run([loss_of_first, train])[0]), task == 0, "%d workers" % workers)


if __name__ == "__main__":
    main()
