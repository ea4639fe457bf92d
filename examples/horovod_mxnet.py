#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel with Horovod and MXNet's Gluon:
`horovodrun --gloo -np 2 python horovod_mxnet.py`, or alone."""
import os

# MXNet 1.9 keeps some gradients in layouts of oneDNN's, which Horovod 0.28 now and then finds them in: one run in ten aborts
os.environ.setdefault("MXNET_MKLDNN_ENABLED", "0")
import horovod.mxnet as hvd  # noqa: E402  MXNet reads its environment when it is imported
import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

import loop  # noqa: E402

SIZE, CLASSES = 32, 10


def network(width, hidden):
    net = mx.gluon.nn.HybridSequential()
    for n_out in (width, 2 * width, 4 * width):
        net.add(mx.gluon.nn.Conv2D(n_out, 3, padding=1), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"),
                mx.gluon.nn.MaxPool2D(2, 2))
    net.add(*[mx.gluon.nn.Dense(32 * width, activation="relu") for _ in range(hidden)], mx.gluon.nn.Dense(CLASSES))
    return net


def main():
    parser = loop.convolutional("a convolutional network with Horovod on MXNet")
    args = parser.parse_args()

    hvd.init()
    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    random = np.random.RandomState(1000 * args.seed + hvd.rank())
    net, loss_of = network(args.width, args.hidden), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.zeros((args.batch_size, 3, SIZE, SIZE)))
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    trainer = hvd.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.01, "momentum": 0.9})

    def step():
        images = mx.nd.array(random.normal(size=(args.batch_size, 3, SIZE, SIZE)))
        labels = mx.nd.array(random.randint(CLASSES, size=args.batch_size))
        with mx.autograd.record():
            losses = loss_of(net(images), labels)
        losses.backward()
        trainer.step(args.batch_size)
        loss = float(losses.mean().asscalar())
        mx.nd.waitall()
        return loss

    loop.train(args, step, hvd.rank() == 0, "%d ranks" % hvd.size())


if __name__ == "__main__":
    main()
