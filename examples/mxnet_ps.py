#!/usr/bin/env python3
"""A small convolutional network on synthetic images, data-parallel through MXNet's distributed key-value store: workers push
gradients to parameter servers and pull parameters. A Module by default, Gluon with --gluon; alone without DMLC_ROLE.

MXNet finds the others by DMLC_ROLE (scheduler, server, worker), DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER and
DMLC_NUM_WORKER; PORT must not be set. Servers and the scheduler run this script, too, and never come past the first import."""
import os

import mxnet as mx
import numpy as np

import loop

SIZE, CLASSES = 32, 10


def symbol(width):
    net = mx.sym.var("data")
    for layer, n_out in enumerate((width, 2 * width, 4 * width)):
        net = mx.sym.Convolution(net, num_filter=n_out, kernel=(3, 3), pad=(1, 1), name="conv%d" % layer)
        net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn%d" % layer)
        net = mx.sym.Activation(net, act_type="relu", name="relu%d" % layer)
        net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool%d" % layer)
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=32 * width, name="fc0")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=CLASSES, name="fc1")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def block(width):
    net = mx.gluon.nn.HybridSequential()
    for n_out in (width, 2 * width, 4 * width):
        net.add(mx.gluon.nn.Conv2D(n_out, 3, padding=1), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"),
                mx.gluon.nn.MaxPool2D(2, 2))
    net.add(mx.gluon.nn.Dense(32 * width, activation="relu"), mx.gluon.nn.Dense(CLASSES))
    return net


def module_steps(args, store):
    """Trains a Module; yields after each step."""
    module = mx.mod.Module(symbol(args.width))
    module.bind([("data", (args.batch_size, 3, SIZE, SIZE))], [("softmax_label", (args.batch_size,))])
    module.init_params(mx.init.Xavier())
    module.init_optimizer(store, "sgd", {"learning_rate": 0.01, "momentum": 0.9, "rescale_grad": 1 / args.batch_size})
    while True:
        images, labels = yield
        module.forward_backward(mx.io.DataBatch([images], [labels]))
        module.update()
        probability = module.get_outputs()[0].asnumpy()
        yield float(-np.log(probability[np.arange(args.batch_size), labels.asnumpy().astype(int)] + 1e-9).mean())


def gluon_steps(args, store):
    """Trains a Gluon block; yields after each step."""
    net, loss_of = block(args.width), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    net(mx.nd.zeros((args.batch_size, 3, SIZE, SIZE)))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9}, kvstore=store,
                               update_on_kvstore=False)
    while True:
        images, labels = yield
        with mx.autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(args.batch_size)
        value = float(loss.mean().asscalar())
        mx.nd.waitall()
        yield value


def main():
    parser = loop.arguments("a convolutional network on MXNet workers")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer")
    parser.add_argument("--gluon", action="store_true", help="Gluon with updates on the workers, in place of a Module")
    args = parser.parse_args()

    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    store = mx.kv.create("dist_sync" if "DMLC_ROLE" in os.environ else "local")
    random = np.random.RandomState(1000 * args.seed + store.rank)
    train = (gluon_steps if args.gluon else module_steps)(args, store)
    next(train)
    def step():
        images = mx.nd.array(random.normal(size=(args.batch_size, 3, SIZE, SIZE)))
        labels = mx.nd.array(random.randint(CLASSES, size=args.batch_size))
        loss = train.send((images, labels))
        next(train)
        return loss

    loop.train(args, step, store.rank == 0, "%d workers" % store.num_workers)


if __name__ == "__main__":
    main()
