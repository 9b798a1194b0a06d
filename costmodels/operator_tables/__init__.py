"""Measured kernel times as an input of the cost models.

`store` reads and writes tables, `aic` imports AIConfigurator's, `bundle` prices operators by them.
"""

from costmodels.operator_tables.bundle import OperatorTables, operator_tables
from costmodels.operator_tables.leave_one_out import leave_one_out
from costmodels.operator_tables.store import load_table, save_table
from costmodels.operator_tables.table import OperatorTable, TableMeta, operator_table

__all__ = [
    "OperatorTable",
    "OperatorTables",
    "TableMeta",
    "leave_one_out",
    "load_table",
    "operator_table",
    "operator_tables",
    "save_table",
]
