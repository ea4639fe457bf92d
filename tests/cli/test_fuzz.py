"""What the fuzz targets are given beside their seeds."""
import glob
import os
import re
import subprocess
import sys

from support import ROOT, Case


class Dictionary(Case):
    @classmethod
    def setUpClass(cls):
        cls.words = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "fuzz_dict.py"), "src/ingest", "src/graph"],
                                   cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()

    def test_it_has_every_name_that_is_compared_with(self):
        compares = re.compile(r'\b(?:starts|ends|str(?:n?cmp|n?casecmp|str))\([^"();]*"([^"\\]+)"')
        n = 0
        for path in glob.glob(os.path.join(ROOT, "src", "ingest", "**", "*.c"), recursive=True) + \
                glob.glob(os.path.join(ROOT, "src", "graph", "**", "*.c"), recursive=True):
            with open(path, encoding="utf-8") as source:
                for name in compares.findall(source.read()):
                    if name.strip():
                        self.assertIn(f'"{name}"', self.words, path)
                        n += 1
        self.assertGreater(n, 60)

    def test_its_entries_are_what_libfuzzer_reads(self):
        for word in self.words:
            self.assertRegex(word, r'\A"(?:[ !#-\[\]-~]|\\x[0-9a-f]{2})+"\Z')
