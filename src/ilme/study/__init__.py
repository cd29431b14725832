"""The paper's experiment from text to tables, in stages that can be killed and started again."""
