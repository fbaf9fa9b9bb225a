"""The bugs that are planted to try the tests still have a place in the code; `make mutants` plants them."""

from tests.rollout.mutants import MUTANTS, ROOT


def test_every_bug_has_one_place_and_tests_that_are_there() -> None:
    for mutant in MUTANTS:
        assert (ROOT / "skyrl_gym" / mutant.file).read_text().count(mutant.old) == 1, mutant.bug
        assert all((ROOT / test).is_file() for test in mutant.tests if test.endswith(".py")), mutant.bug
