"""Configuration sections are read and written as the clearml SDK reads them."""

from clearml.utilities.config import text_to_config_dict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deploy.tools import sections
from gateway import hocon

KEYS = st.text(st.sampled_from("abcxyz019_/-. :=#$+@"), min_size=1, max_size=8).map(str.strip).filter(bool)
SCALARS = st.one_of(
    st.integers(-(10**9), 10**9),
    st.booleans(),
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.sampled_from(["a", "b"]), SCALARS))


@example({"a": {"cfg": ['platform: "x"\nmax: 4\n', '"quoted"', "back\\slash", "$5", "${HOME}", "a\r\nb", "# c", ""]}})
@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_rendered_section_reads_back_unchanged_here_and_in_the_sdk(section: dict[str, object]) -> None:
    """`render` returns a text that both read back to the same values, or raises."""
    try:
        text = sections.render(section)
    except hocon.Unreadable:
        return
    assert hocon.parse(text) == section
    assert text_to_config_dict(text) == section
