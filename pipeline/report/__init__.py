"""The usage report: from the usage table to pages for platform teams and finance."""
