#!/usr/bin/env python3
"""Runs quickstart and compares its output with expected_output.txt, and its exact rows with those of the Python originals."""
import pathlib
import re
import struct
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
HERE = pathlib.Path(__file__).parent

# Recorded from aqtp 0.9.0, jax 0.10.2: the f32 bits of the MLP's outputs, fully_quantized(8, 8) and
# config_v4(fwd_bits=4), and of the product by hand.
RECORDED = {
    "int8": "3f33fceb 3fc145e8 c0288ae1 bfe0a6dc "
            "bc13af2f 3db3b399 bfc84143 bebee5d7 "
            "3ecd6bfa 3f983ea1 bf31a4ab bef5c36c",
    "int4": "3f38be08 3faf51be c0143963 bfc7c60f "
            "3da50fc8 bc839465 bf9e40e1 be6f413c "
            "3ee7e5bf 3f91c0e8 bf2a76da beb7de0b",
    "by hand": "4066646a 40bb6693 3ff82288 4097c3b8 3ffd57bd "
               "408a4ce4 3f7f2f1d 402f2fe8 408b7dc4 4068a7f1 "
               "bd9dfcb7 402f75bf beb4f53b 3e529fb4 bf9944c8",
}
# The decimals in AQT's README: scale and qvalues of its quantizer.
QUANTIZER = {
    4: (1.4285715, [1, 2, 4, 5, 7]),
    2: (10, [0, 0, 1, 1, 1]),
    3: (3.3333333, [0, 1, 2, 2, 3]),
    8: (0.07874016, [14, 42, 71, 99, 127]),
}


def f32(text):
    return struct.unpack("<f", struct.pack("<f", float(text)))[0]


def rows(output, name):
    """The numbers of each row with this name, including its continuation lines."""
    found = []
    for line in output.splitlines():
        if line.startswith(f"  {name} "):
            found.append(line[10:].split())
            continuing = True
        elif line.startswith(" " * 10) and found and continuing:
            found[-1] += line.split()
        else:
            continuing = False
    return found


class QuickstartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.output = subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout

    def test_output(self):
        self.assertEqual(self.output, (HERE / "expected_output.txt").read_text(encoding="utf-8"))

    def test_recorded_bits(self):
        for name, want in RECORDED.items():
            with self.subTest(row=name):
                (got,) = rows(self.output, name)
                self.assertEqual([struct.pack(">f", float(v)).hex() for v in got], want.split())

    def test_quantizer(self):
        bits_and_scale = re.findall(r"(\d) bits, scale (\S+)", self.output)
        self.assertEqual([int(bits) for bits, _ in bits_and_scale], list(QUANTIZER))
        qvalues, dequantized = rows(self.output, "qvalue"), rows(self.output, "dequant")
        for (bits, scale), q, values in zip(bits_and_scale, qvalues, dequantized, strict=True):
            want_scale, positive = QUANTIZER[int(bits)]
            with self.subTest(bits=bits):
                self.assertEqual(f32(scale), f32(want_scale))
                self.assertEqual([int(v) for v in q], [-v for v in reversed(positive)] + positive)
                self.assertEqual([f32(v) for v in values], [f32(int(v) * f32(scale)) for v in q])


if __name__ == "__main__":
    unittest.main()
