"""How many modules an epoch goes through, as the page on the attempt of a checkpoint says."""

from tests.kit.threads.epoch_modules import BEGIN, END, PAGE, table


def test_the_page_names_the_modules_that_an_epoch_enters() -> None:
    _, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    assert rest.partition(END)[0] == table()
