"""The fixture `site`."""

from tests.plugins import site as site
