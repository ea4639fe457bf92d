/* Where dpro's other parts lie: what goes into a job to record it. */
#pragma once

struct parts {  /* absolute paths, the process's own; NULL: not there */
    char *site; /* for PYTHONPATH: the folder that holds sitecustomize.py */
    char *tracer, *nccl;
    char *mpi; /* what dpro itself loads under mpirun */
};

/* Looks beside the command, or below the environment's DPRO_HOME when that is set. Returns 0, or
 * the exit code after having said that the Python package is missing. */
int parts_find(struct parts *parts);
void parts_fini(struct parts *parts);
