/* Runs a fuzz target on files: to see a finding again with any compiler, or for AFL. */

#include "fuzz.h"

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            return 1;
        }
        size_t size = 0, cap = 1 << 16;
        uint8_t *data = malloc(cap);
        for (size_t n = 1; data && n > 0; size += n) {
            if (size == cap) {
                uint8_t *grown = realloc(data, cap *= 2);
                if (!grown)
                    free(data);
                data = grown;
            }
            n = data ? fread(data + size, 1, cap - size, file) : 0;
        }
        fclose(file);
        if (!data)
            return 1;
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
