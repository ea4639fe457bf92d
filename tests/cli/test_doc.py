"""The documents are true: their commands run and print what is shown, their links lead somewhere."""
import glob
import os
import re
import subprocess

from support import BUILD, ROOT, Case, console_examples, read_text

DOCUMENTS = [os.path.join(ROOT, "README.md"), os.path.join(ROOT, "CONTRIBUTING.md")] + sorted(
    glob.glob(os.path.join(ROOT, "doc", "**", "*.md"), recursive=True))


class Documents(Case):
    def setUp(self):
        super().setUp()
        os.symlink(BUILD, self.path("build"))  # examples are run in a folder that looks like the checkout
        os.symlink(os.path.join(ROOT, "tests"), self.path("tests"))

    def test_examples_run(self):
        ran = 0
        for document in DOCUMENTS:
            for command, shown in console_examples(document):
                if not command.startswith("./build/dpro"):
                    continue
                with self.subTest(document=os.path.relpath(document, ROOT), command=command):
                    done = subprocess.run(["bash", "-c", "set -o pipefail; " + command], cwd=self.folder, timeout=120,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    self.assertEqual(done.returncode, 0, done.stderr.decode("utf-8", "replace"))
                    said = done.stdout.decode("utf-8", "replace")
                    self.assertEqual(said[:len(shown)], shown)
                ran += 1
        self.assertGreater(ran, 5)

    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            text = re.sub(r"^```.*?^```", "", read_text(document), flags=re.S | re.M)
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
                if "://" in target:
                    continue
                path = os.path.join(os.path.dirname(document), target)
                self.assertTrue(os.path.exists(path), f"{os.path.relpath(document, ROOT)}: {target}")
