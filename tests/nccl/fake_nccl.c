/* As much of libnccl.so as the plugin looks at: the mask, and the version that the library with the
 * mask in it has. */
int mask_in_library;
int version_in_library;
int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
    *version = version_in_library;
    return 0;
}
