/* SPDX-License-Identifier: Apache-2.0 */
/* A task is a thread of this computer, which may well run at the same time as the main one. */
typedef struct {
    pthread_t thread;
    void (*code)(void *);
    void *argument;
    uint32_t stack_bytes;
} StaticTask_t;
typedef StaticTask_t *TaskHandle_t;

TaskHandle_t xTaskCreateStaticPinnedToCore(void (*code)(void *), const char *name, uint32_t stack_bytes, void *argument,
                                           UBaseType_t priority, StackType_t *stack, StaticTask_t *task, BaseType_t core);
UBaseType_t uxTaskPriorityGet(TaskHandle_t task);
UBaseType_t uxTaskGetStackHighWaterMark(TaskHandle_t task);
