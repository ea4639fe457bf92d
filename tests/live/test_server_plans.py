"""Plans in jobs with parameter servers, and the loop from a recording to what its plan brings.

As a job runs by itself, one worker computes while the other waits for its link; with a good plan both compute at the same time,
which took each of them twice as long (17 and 38 ms) on the two cores of a virtual machine. No recording of the job shows that. So
links are slow here: they are what holds the job up."""

import plan_loop


class MXNet(plan_loop.Case):
    framework = "mxnet"

    def test_the_loop_parts_arrays_over_two_servers(self):
        self.assertTrue(self.loop("mxnet-gluon", ["--batch-size", "4"], rate="100mbit")["helps"])


class Session(plan_loop.Case):
    framework = "tensorflow"

    def test_the_loop_places_variables_on_two_servers(self):
        self.assertTrue(self.loop("tensorflow-ps-2", rate="500mbit")["helps"])
