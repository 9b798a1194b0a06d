"""One scenario simulated, once or several times: results, summary and result folder."""
