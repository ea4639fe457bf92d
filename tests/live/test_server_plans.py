"""Plans in jobs with parameter servers, and the loop from a recording to what its plan brings."""
import unittest

import plan_loop


class MXNet(plan_loop.Case):
    framework = "mxnet"

    def test_the_loop_parts_arrays_over_two_servers(self):
        self.assertTrue(self.loop("mxnet-gluon")["helps"])


class Session(plan_loop.Case):
    framework = "tensorflow"

    def test_the_loop_places_variables_on_two_servers(self):
        self.assertTrue(self.loop("tensorflow-ps-2")["helps"])


if __name__ == "__main__":
    unittest.main()
