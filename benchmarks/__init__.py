"""What lrbi is measured by: run ``make bench``. Ratios are of times taken in the same run."""
