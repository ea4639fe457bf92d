"""Plans in jobs with parameter servers, and the loop from a recording to what its plan brings."""
import unittest

import plan_loop


class MXNet(plan_loop.Case):
    framework = "mxnet"

    def test_the_loop_parts_arrays_over_two_servers(self):
        # With the plan both workers compute at the same time, which took each of them twice as long (38 ms for 17) on the two
        # cores of a virtual machine, and no recording of the job without it shows that: here little is computed.
        self.assertTrue(self.loop("mxnet-gluon", ["--batch-size", "4"], rate="200mbit")["helps"])


class Session(plan_loop.Case):
    framework = "tensorflow"

    def test_the_loop_places_variables_on_two_servers(self):
        self.assertTrue(self.loop("tensorflow-ps-2")["helps"])


if __name__ == "__main__":
    unittest.main()
