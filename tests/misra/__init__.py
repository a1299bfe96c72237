"""Generated code and the runtime held against MISRA C:2012 and static analysers."""
